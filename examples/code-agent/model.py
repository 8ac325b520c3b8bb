"""Stands in for a language model: says prepared programs, one after the other, and reacts to failures."""

PROGRAMS = [
    "print(sum(range(101)))",
    "print(1 / 0)",
    "import socket, pathlib\nprint(pathlib.Path('/etc/shadow').read_text())\nsocket.create_connection(('1.1.1.1', 443), 2)",
    "print('the first ten squares end with', [n * n for n in range(1, 11)][-1])",
]


class ScriptedModel:
    def __init__(self):
        self.programs = iter(PROGRAMS)
        self.observations = []

    def next_program(self, observation):
        """The next program, or None when the model is content."""
        self.observations.append(observation)
        return next(self.programs, None)
