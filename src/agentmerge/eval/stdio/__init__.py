"""Tasks whose tests call a function, told as tasks whose programs read standard input and print."""
