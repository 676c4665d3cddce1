"""The fold: questions answered over every stack."""
