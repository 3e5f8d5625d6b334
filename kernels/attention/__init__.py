"""What attention over a paged cache needs beside its op: the plan of a step's rows, and a fast path in plain torch."""
