"""Evaluations side by side: tables as the paper has them, differences that are more than noise, and a verdict.

`asked` puts the same items of several models beside each other, `estimates`, `bootstrap` and `swaps` say what can be
said of their means, `comparison` makes rows of it, `verdict` judges the rows, and `render` and `page` show them.
"""
