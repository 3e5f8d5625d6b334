"""The way of one turn from request to answer: admit, prepare, route, answer, settle."""
