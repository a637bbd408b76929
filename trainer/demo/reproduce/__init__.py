"""The experiment behind the README's table: SAGE and what it is compared with, in the practice world."""
