"""Questions of joma's own."""
