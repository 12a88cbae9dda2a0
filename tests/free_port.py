"""Where processes that a test starts can meet."""
import random
import socket


def free_port():
    """None of those that the system gives away, as it might until somebody listens there."""
    while True:
        port = random.SystemRandom().randrange(16_000, 32_000)
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
