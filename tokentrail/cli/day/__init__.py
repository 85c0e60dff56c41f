"""The synthetic day of `tokentrail demo --day`: its plan, engines that live it, and the demo that shows it."""
