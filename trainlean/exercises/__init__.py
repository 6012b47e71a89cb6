"""What an exercise is, and how an answer is checked where it is written."""
