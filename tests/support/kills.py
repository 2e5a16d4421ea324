"""Programs that kill themselves while a stage writes its outputs."""

_PROGRAM = """
import os, signal, sys, {module}
left = int(sys.argv.pop(1))
def counted(call):
    def wrapped(*arguments):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments)
    return wrapped
os.fsync, os.replace = counted(os.fsync), counted(os.replace)
sys.exit({module}.main(sys.argv[1:]))
"""


def killed_before_call(module: str) -> str:
    """Return a program that runs a stage with argv[2:], and kills itself before call number argv[1] of the two.

    They are `os.fsync` and `os.replace`, which make a file permanent.
    """
    return _PROGRAM.format(module=module)
