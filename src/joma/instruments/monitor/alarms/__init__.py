"""What a monitor says: which change or state, judged how, and who hears of it."""
