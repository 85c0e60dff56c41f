-- The variants and the models of the rows of a group.
arraySort(groupUniqArray(variant)) AS variants, arraySort(groupUniqArray(model)) AS models
