"""The pipeline: the steps of one turn from request to answer."""
