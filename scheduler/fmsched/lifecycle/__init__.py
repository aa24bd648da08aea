"""What becomes of a job: the table of transitions, the step that follows it, and who counts as alive. Pure."""
