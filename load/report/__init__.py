"""What came of a load test, as a page, as JSON and as CSV."""
