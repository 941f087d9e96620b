"""Coverage-guided fuzzing (atheris) of everything that reads what a stranger may have written."""
