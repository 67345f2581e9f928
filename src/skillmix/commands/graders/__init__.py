"""Commands that measure graders and people who grade."""
