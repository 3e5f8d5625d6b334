"""Runs step plans on a device: batches, recorded steps, sampling, copies to host memory."""
