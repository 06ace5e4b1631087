"""Everything that figures share: style, explorer, animation, stepper, guess marks, and export to web pages."""
