"""The mark of a hint after an exception, on the same line. For both ends: stdlib only."""

NOTE = "Hint: "  # begins the note of an exception
HINT = f". {NOTE}"
NO_FUNCTIONS = "no function was given for this task"  # of a function that is not defined
