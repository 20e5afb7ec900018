"""What the API says: Service, EndpointSlice, Endpoints and Node as typed values, and their decoding."""
