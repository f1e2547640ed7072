"""The program a host starts once a server: ``python .../forkserver/__main__.py CONTROL_FD HOST_PID``.

Invariant: what it runs sees the search path, arguments and ``__main__`` that ``python -m MODULE`` would have given it.
"""

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from forkserver.serve import main

    del sys.path[0]
    main(int(sys.argv[1]), int(sys.argv[2]))
