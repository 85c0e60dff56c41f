-- The tokens of pictures and sound among the input and the output tokens of a request, which do not exceed them.
if($told_image_input > input, NULL, $told_image_input) AS image_input_tokens,
if($told_audio_input > input, NULL, $told_audio_input) AS audio_input_tokens,
if($told_image_output > n, NULL, $told_image_output) AS image_output_tokens,
if($told_audio_output > n, NULL, $told_audio_output) AS audio_output_tokens
