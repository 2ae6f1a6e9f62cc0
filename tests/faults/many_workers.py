"""Several paced workers as threads of one process: `python -m tests.faults.many_workers TOK_S NAME…`."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType

from engine.serving.worker import Worker
from engine.settings import redis_url


def main() -> None:
    sys.setswitchinterval(0.0005)
    options = {"tok_s": float(sys.argv[1]), "burst": 16.0}
    workers = [Worker(redis_url(), "words", "paced", name, options=options) for name in sys.argv[2:]]

    def stop(_signal: int, _frame: FrameType | None) -> None:
        """They take their leave: without it they would be missed for seconds before they are off the list."""
        for worker in workers:
            worker.stop(at_once=True)

    signal.signal(signal.SIGTERM, stop)
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
