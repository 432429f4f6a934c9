"""Which messages a subscription wants: by tag (`a || b`), and by property (`region = 'eu' AND amount > 10`)."""
