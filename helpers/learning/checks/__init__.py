"""The checks that an exercise's check cells call; each returns an Outcome. Every check takes the answer first and
`name=`."""

from helpers.learning.progress import watch

watch()
