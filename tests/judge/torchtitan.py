"""torchtitan as judge of its own modules: `python -m tests.judge.torchtitan` asks it about each case that has them.

It needs more to be imported than tests install, and so lies beside that:

    pip install --target torchtitan-0.2.2 --no-deps torchtitan==0.2.2 \
        absl-py docstring-parser protobuf shtab tensorboard torchdata triton typeguard tyro
    PYTHONPATH=torchtitan-0.2.2 python -m tests.judge.torchtitan

What is asked is estimator/verify/torchtitan.py, as `willitfit verify` asks it.
"""

from __future__ import annotations

if __name__ == "__main__":
    from tests.judged import main

    main(["torchtitan"])
