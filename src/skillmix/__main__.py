"""`python -m skillmix` is the `skillmix` command."""

from skillmix.cli import main

raise SystemExit(main())
