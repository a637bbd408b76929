"""A plug-in: the expert of practice on the APIs of strangers."""

from trainer.lessons.experts import plug_in
from trainer.practice.experts import PracticeExpert
from trainer.worlds.strangers.environment import StrangersEnvironment

load_expert = plug_in("strangers", PracticeExpert, StrangersEnvironment)
