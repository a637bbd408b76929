"""Model servers of the trainer's own: in a child process, or over HTTP."""
