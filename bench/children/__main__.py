"""`python -m bench.children MODULE FOLDER DESCRIPTOR` is a child: see bench.children.child."""

from bench.children.child import main

main()
