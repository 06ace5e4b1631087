"""What the check cells of an exercise call, each giving an Outcome. Every check takes the answer first and `name=`."""

from helpers.learning.progress import watch

watch()
