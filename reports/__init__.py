"""Tables, figures and the page: they read rows and run nothing."""
