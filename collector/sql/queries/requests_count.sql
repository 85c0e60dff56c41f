SELECT count() AS total FROM requests WHERE $window AND $filter
