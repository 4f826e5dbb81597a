"""What both ends say: messages, errors, the job, its events and its outcome; shipped to hosts."""
