"""What a policy can do: held-out scenarios, figures with intervals, decisions."""
