-- The key of a request's TTFT. An SDK before 0.2 sends the second key alone.
if(mapContains(number, 'tokentrail.time_to_first_token'),
    'tokentrail.time_to_first_token', 'gen_ai.response.time_to_first_chunk')
