# Short commands; dev.py is what they run, and it runs without make.
PYTHON ?= python3
.PHONY: help sync fmt check test lowest bench lock serve

help:
	@$(PYTHON) dev.py --help

sync fmt check test lowest lock serve:
	@$(PYTHON) dev.py $@ $(ARGS)

bench:
	@$(PYTHON) dev.py bench $(NAME) $(ARGS)
