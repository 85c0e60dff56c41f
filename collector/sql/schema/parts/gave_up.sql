-- A function from an error's type to: the client's own code stopped waiting. In Python this is asyncio's CancelledError or
-- GeneratorExit, with or without a module in front.
(type -> match(type, '(^|\\.)(CancelledError|GeneratorExit)$$'))
