"""What runs a step plan on a device: batches, recorded steps, sampling, copies to host memory."""
