"""Results for people: rows of the leaderboard, figures and the page that holds both."""
