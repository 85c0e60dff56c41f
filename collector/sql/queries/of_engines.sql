(service, instance) IN (SELECT service, instance FROM requests WHERE $window AND $filter)
