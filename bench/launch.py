"""
Run one command and tell, as JSON on the last line: seconds by the wall, peak resident memory (KiB), exit status.

A process inherits the peak of the one that started it (the kernel takes it over in exec), so whoever measures a command
has to be smaller than it: this program is, the benchmark is not.
"""

import json
import os
import sys
import time


def main() -> None:
    """Run the command of the arguments; its standard output goes to the file that the first one names."""
    output = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    started = time.perf_counter()
    process_id = os.posix_spawnp(
        sys.argv[2], sys.argv[2:], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, output, sys.stdout.fileno())]
    )
    _, status, usage = os.wait4(process_id, 0)
    seconds = time.perf_counter() - started
    answer = {"seconds": seconds, "peak_kib": usage.ru_maxrss, "exit_status": os.waitstatus_to_exitcode(status)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
