-- The variants and the models of the rows of a group. A sender may put an id in place of a name, and answers show 100 of a process.
arraySort(groupUniqArray(1000)(variant)) AS variants, arraySort(groupUniqArray(1000)(model)) AS models
