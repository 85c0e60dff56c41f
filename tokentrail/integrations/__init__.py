"""Recorders for engines that other people wrote. `recorder` knows no engine; each other module hooks into one."""
