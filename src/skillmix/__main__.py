"""`python -m skillmix` is the `skillmix` command."""

from skillmix.commands import main

raise SystemExit(main())
