"""Start quantpipe from a checkout, as in `python run.py hardware=vta search=greedy`."""

from quantpipe.app.start import main

if __name__ == "__main__":
    main()
