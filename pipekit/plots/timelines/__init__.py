"""Who does what when, and what lies in memory meanwhile: pictures over time."""
