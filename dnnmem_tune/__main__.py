"""``python -m dnnmem_tune`` is the command ``dnnmem``."""

from dnnmem_tune.cli.main import main

if __name__ == "__main__":
    main()
