"""What each adapter learns: its examples, the questions held back from training, and how answers are graded."""
