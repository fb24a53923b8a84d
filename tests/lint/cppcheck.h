/* For cppcheck, which reads no system headers: the loops of jansson in a form that it can follow.
 */
#define json_array_foreach(a, i, v)  for (i = 0; (v = json_array_get(a, i)); i++)
#define json_object_foreach(o, k, v) for (k = ""; (v = json_object_get(o, k));)
