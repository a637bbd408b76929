"""Exams: a project's own tasks as an environment, tried on what was recorded of them, or on its APIs."""
