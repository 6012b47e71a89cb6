"""What is replayed: recorded training loops, lives of activations, and what ranks did over time."""
